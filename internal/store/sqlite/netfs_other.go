//go:build unix && !linux

package sqlite

// networkFileSystem cannot tell on this system.
func networkFileSystem(string) string { return "" }
