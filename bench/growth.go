package main

import (
	"context"
	"flag"
	"io"
)

func runGrowth(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("growth", flag.ContinueOnError)
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	return nil
}
