//go:build profile

package main

import (
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
)

// A binary built with this tag writes a CPU profile of its life until SIGTERM,
// and one of its allocations, into the directory that INBOXD_PROFILE names:
// inboxd serves no profiles on its ports.
func init() {
	dir := os.Getenv("INBOXD_PROFILE")
	if dir == "" {
		return
	}
	f, err := os.CreateTemp(dir, "cpu-*.pprof")
	if err != nil {
		panic(err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		panic(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		pprof.StopCPUProfile()
		f.Close()
		if f, err := os.CreateTemp(dir, "allocs-*.pprof"); err == nil {
			pprof.Lookup("allocs").WriteTo(f, 0)
			f.Close()
		}
	}()
}
