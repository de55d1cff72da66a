//go:build !unix

package forward

import "net"

const canPeek = false

// isQuiet is not known here: net/http serves every target.
func isQuiet(net.Conn) bool { return false }
