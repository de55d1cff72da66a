// Package verify proves a handler idempotent, or shows where it is not: it
// sends what inboxd would send in the cases that lead to doubled or lost
// effects, and counts the effects through a view that the user names.
package verify
