package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set at a release with -ldflags "-X main.version=v1.2.3"; otherwise
// the module's version or its revision speaks.
var version string

type build struct{ version, revision, goVersion string }

func buildInfo() build {
	b := build{version: version, revision: "unknown", goVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.version == "" {
		b.version = info.Main.Version
	}
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+modified"
		}
	}
	if b.version == "" || b.version == "(devel)" {
		b.version = "devel"
	}
	b.revision += modified
	return b
}

func runVersion(_ context.Context, env environment, _ []string) int {
	b := buildInfo()
	fmt.Fprintf(env.stdout, "inboxd %s (revision %s, %s %s/%s)\n", b.version, b.revision, b.goVersion, runtime.GOOS, runtime.GOARCH)
	return exitOK
}
