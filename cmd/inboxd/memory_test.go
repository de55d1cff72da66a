package main

import (
	"runtime"
	"runtime/debug"
	"testing"
)

var garbage []byte

// Not t.Parallel: the collector is everybody's.
func TestABusyDaemonCollectsRarely(t *testing.T) {
	if before := debug.SetGCPercent(100); before != 100 {
		debug.SetGCPercent(before)
		t.Skip("GOGC is set")
	}
	defer debug.SetGCPercent(100)
	collections := func() uint32 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		const total, size = 256 << 20, 1 << 10
		for range total / size {
			garbage = make([]byte, size)
		}
		runtime.ReadMemStats(&after)
		return after.NumGC - before.NumGC
	}
	untuned := collections()
	tuneCollector()
	tuned := collections()
	if most := uint32(256<<20/gcRoom + 4); tuned > most {
		t.Errorf("got %d collections for 256 MiB of garbage (%d without tuning), want at most %d", tuned, untuned, most)
	}
}
