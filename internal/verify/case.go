package verify

import (
	"fmt"
	"slices"
	"strings"
)

// Result is how a case ended.
type Result string

// The results.
const (
	Pass Result = "pass"
	Fail Result = "fail"
	Skip Result = "skip"
)

// Case is one row of the report.
type Case struct {
	Name     string `json:"name"`
	Result   Result `json:"result"`
	Requests int    `json:"requests"`
	Answers  string `json:"answers"`
	Effects  string `json:"effects"` // seen; "" where it was not looked at
	Want     string `json:"want"`
	Why      string `json:"why,omitempty"`    // what went wrong, or why it was skipped
	Remedy   string `json:"remedy,omitempty"` // what to change
	Note     string `json:"note,omitempty"`   // worth knowing, but no failure

	answers []string
}

func newCase(name string, want float64) *Case {
	return &Case{Name: name, Result: Pass, Want: effectString(want)}
}

// add counts an answer to a request.
func (c *Case) add(a answer) answer {
	c.Requests++
	c.answers = append(c.answers, a.String())
	c.Answers = tally(c.answers)
	return a
}

// cutShort counts a request whose answer was not waited for.
func (c *Case) cutShort(n int) {
	c.Requests += n
	for range n {
		c.answers = append(c.answers, "cut")
	}
	c.Answers = tally(c.answers)
}

func tally(answers []string) string {
	var order []string
	count := make(map[string]int)
	for _, a := range answers {
		if count[a]++; count[a] == 1 {
			order = append(order, a)
		}
	}
	slices.Sort(order)
	parts := make([]string, len(order))
	for i, a := range order {
		parts[i] = fmt.Sprintf("%d×%s", count[a], a)
	}
	return strings.Join(parts, " ")
}

// fail keeps the first failure: it is the one to mend first.
func (c *Case) fail(f fault, why string, args ...any) {
	if c.Result == Fail {
		return
	}
	if len(args) > 0 {
		why = fmt.Sprintf(why, args...)
	}
	c.Result, c.Why, c.Remedy = Fail, why, f.remedy()
}

// adopt takes over the verdict of another look at the same case, unless the
// case has failed already.
func (c *Case) adopt(o *Case) {
	if c.Result == Fail {
		return
	}
	c.Note = join(c.Note, o.Note)
	if o.Result == Fail {
		c.Result, c.Why, c.Remedy = o.Result, o.Why, o.Remedy
	}
}

func (c *Case) skip(why string) { c.Result, c.Why = Skip, why }

// fault is what may be wrong with a handler; it names the remedy.
type fault uint8

const (
	faultUnreachable fault = iota
	faultNoEffect
	faultEarlyAnswer
	faultKeyIgnored
	faultDuplicateAnswer
	faultRace
	faultHalf
	faultForgets
	faultUnsafeRetry
	faultNeverDone
	faultWrongKey
	faultMixed
	faultOtherBody
)

const claimFirst = "Insert the key into the inbox table first, in the transaction of the change " +
	"(select inbox_claim(consumer, key, fingerprint)): true: make the change and commit; false: roll back and answer 200"

func (f fault) remedy() string {
	switch f {
	case faultUnreachable:
		return "check the URL, the route's method (POST), authentication (--token-file, --header), the content type and the sample message; CSRF and host checks refuse such requests too"
	case faultNoEffect:
		return "check that the view shows what this message changes, and that the handler commits before it answers 2xx: after a 2xx inboxd acks, and what is not committed is lost"
	case faultEarlyAnswer:
		return "answer 2xx only when the change is committed, also to a second copy that finds the key: with the key in the transaction of the change " +
			"the database makes the second copy wait for the first. Where the view itself lags behind, say by how much with --lag"
	case faultKeyIgnored:
		return "let the header Idempotency-Key decide. " + claimFirst
	case faultDuplicateAnswer:
		return "answer 200 to a message whose key is there already (and, if you like, the header Inbox-Outcome: duplicate): any other answer makes inboxd send it again or park it"
	case faultRace:
		return "do not look first and write later: let a unique key decide. " + claimFirst +
			". Of two transactions with one key the second then waits for the first"
	case faultHalf:
		return "commit the key and the change in one transaction, so that a request that dies in the middle leaves neither. " + claimFirst
	case faultForgets:
		return "keep the key in the database, not in memory, a cache or a local file of the process. " + claimFirst
	case faultUnsafeRetry:
		return "whatever may fail after the commit must not lead to another answer than 2xx, and a key that is committed must be answered 200. " + claimFirst
	case faultNeverDone:
		return "look at the handler's log: the message would be sent again, with pauses, and parked in the end"
	case faultWrongKey:
		return "let Idempotency-Key (together with Inbox-Consumer) decide, not the body or a part of it; if two messages of this sample are one on purpose, put {{id}} or {{n}} where they must differ"
	case faultMixed:
		return "requests run side by side: keep what belongs to one request (the message, the connection, the transaction) out of variables that all requests share"
	default:
		return "answer 422 to a key that was used for another body: inbox_claim(consumer, key, fingerprint) raises SQLSTATE IB422 then. Two messages with one ID are a producer's mistake that somebody must see"
	}
}
