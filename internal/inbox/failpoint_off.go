//go:build !failpoint

package inbox

// Failpoint does nothing; see failpoint.go.
func Failpoint(string) {}
