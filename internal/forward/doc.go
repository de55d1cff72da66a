// Package forward is the HTTP side: it turns a delivery into one POST request,
// the answer into a verdict, and decides when a request may go (concurrency,
// breaker, health of the application). It never retries by itself, but for the
// one repetition after a kept-alive connection turned out to be dead.
package forward
