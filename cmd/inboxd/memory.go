package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
)

// memoryShare of the cgroup's limit is given to the Go runtime; the rest is for
// what it does not count (stacks of C libraries it has none of, page tables,
// the kernel's socket buffers).
const memoryShare = 0.9

// limitMemory sets the soft memory limit from the container's, so that the
// collector works harder before the kernel kills. An explicit GOMEMLIMIT
// stands. It returns the limit it set, or 0.
func limitMemory() int64 {
	if os.Getenv("GOMEMLIMIT") != "" {
		return 0
	}
	limit := cgroupLimit("/")
	if limit == 0 {
		return 0
	}
	limit = int64(float64(limit) * memoryShare)
	debug.SetMemoryLimit(limit)
	return limit
}

// memoryLimit returns the Go runtime's limit, whoever has set it, or 0.
func memoryLimit() int64 {
	if n := debug.SetMemoryLimit(-1); n < math.MaxInt64 {
		return n
	}
	return 0
}

const (
	// inHandPart of the memory limit is for messages in hand. The rest is for what
	// the collector has not got to yet, as much again; for what is stored in batches;
	// and for the daemon itself.
	inHandPart = 4
	// defaultInHand is the room for them where there is no limit.
	defaultInHand = 256 << 20
)

// autoInHand is the room for messages in hand under a memory limit, 0 for none.
func autoInHand(limit int64) int64 {
	if limit == 0 {
		return defaultInHand
	}
	return max(1, limit/inHandPart)
}

// cgroupLimit returns the memory limit of this process's cgroup in bytes, 0
// where there is none. root stands for / in tests. Inside a container the
// cgroup of the process is usually mounted as the root of the hierarchy.
func cgroupLimit(root string) int64 {
	own, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	var files []string
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && parts[0] == "0" && parts[1] == "" {
			// A limit holds for everything below it, so each level counts.
			for dir := parts[2]; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
				files = append(files, filepath.Join("sys/fs/cgroup", dir, "memory.max"))
			}
		}
		if len(parts) == 3 && parts[1] == "memory" {
			files = append(files, filepath.Join("sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes"))
		}
	}
	files = append(files, "sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
	lowest := int64(math.MaxInt64)
	for _, f := range files {
		raw, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			continue
		}
		// "max" is no number. Version 1 writes a number near 2^63 for none.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64); err == nil && n > 0 && n < 1<<60 {
			lowest = min(lowest, n)
		}
	}
	if lowest == math.MaxInt64 {
		return 0
	}
	return lowest
}

const (
	// gcRoom is what may be allocated between two collections at least. What a
	// message leaves behind is small and so is what is alive: with Go's default, a
	// collection at twice the size, a busy daemon would collect thirty times a
	// second, and look at the stack of every delivery in hand each time.
	gcRoom       = 32 << 20
	minGCPercent = 100
	maxGCPercent = 1600
)

// tuneCollector keeps gcRoom between two collections for as long as the process
// lives, and Go's default where that is more. The memory limit goes before it. An
// explicit GOGC stands.
func tuneCollector() {
	if os.Getenv("GOGC") != "" {
		return
	}
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	set := 100
	adjust := func() {
		metrics.Read(sample)
		want := maxGCPercent
		if live := sample[0].Value.Uint64(); live > 0 {
			want = max(minGCPercent, min(maxGCPercent, int(gcRoom*100/live)))
		}
		if want > set*5/4 || want < set*4/5 {
			set = want
			debug.SetGCPercent(want)
		}
	}
	adjust()
	afterEachCollection(adjust)
}

// afterEachCollection calls f soon after the end of each collection, on the
// goroutine of the finalizers.
func afterEachCollection(f func()) {
	type sentinel struct{ _ *byte }
	var again func(*sentinel)
	again = func(s *sentinel) {
		f()
		runtime.SetFinalizer(s, again)
	}
	runtime.SetFinalizer(&sentinel{}, again)
}
