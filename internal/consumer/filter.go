package consumer

import "io"

func newFilter(r io.Reader) io.Reader { return r }
