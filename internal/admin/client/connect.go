package client

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// BaseURL turns what the daemon listens on (127.0.0.1:9321, :9321, [::]:9321)
// into the URL to reach it from the same host.
func BaseURL(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("address %q: %w", listen, err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return "http://" + net.JoinHostPort(host, port), nil
}

// TokenFile returns a Client.Token that reads the first token of a file that
// the daemon reads too.
func TokenFile(file string) func() (string, error) {
	return func() (string, error) {
		b, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("reading the admin token: %w", err)
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			switch {
			case len(f) == 0 || strings.HasPrefix(f[0], "#"):
			case len(f) == 1:
				return f[0], nil
			default: // NAME TOKEN
				return f[1], nil
			}
		}
		return "", errors.New("reading the admin token: " + file + " holds none")
	}
}
