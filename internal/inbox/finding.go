package inbox

// The levels of a Finding.
const (
	LevelOK   = "ok"
	LevelWarn = "warn" // works, but not as one would wish
	LevelFail = "fail" // does not work, or does not keep the promise
)

// Finding is what an examination of the surroundings (broker, store, handler)
// found out about one thing.
type Finding struct {
	Level   string `json:"level"`
	Subject string `json:"subject"`          // what was looked at
	Detail  string `json:"detail"`           // what was seen
	Remedy  string `json:"remedy,omitempty"` // what to do about it, unless ok
}
