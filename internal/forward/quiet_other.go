//go:build !unix

package forward

import "net"

const canPeek = false

type peeker struct{}

func newPeeker(net.Conn) *peeker { return nil }

// isQuiet is not known here: net/http serves every target.
func (*peeker) isQuiet() bool { return false }
