// Package shared reads the inbox table that a service keeps in its own
// PostgreSQL database and writes in the transaction of its business change. The
// row is the evidence that a message was processed: nobody but the service can
// make it, and it cannot exist without the change.
package shared
