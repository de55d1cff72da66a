// Package storetest says what a store is. Every implementation passes Run; what
// is not asked here, nobody may rely on.
package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// Place is where one test's stores keep their inbox, empty at first.
type Place struct {
	// Open opens a store on the place; it is closed when the test ends, and may
	// be closed before. Options that are zero take their defaults.
	Open func(t testing.TB, o Options) store.Store
	// Age makes the records of keys older by changing what is stored.
	Age func(t testing.TB, by time.Duration, keys ...inbox.Key)
	// Replicas says that several stores can be open at once, and then lease
	// keys against each other.
	Replicas bool
}

// Options are what the tests vary.
type Options struct{ Retention time.Duration }

// Consumer is the consumer of most tests.
const Consumer = "billing"

// Run checks a store. fresh returns a new, empty place.
func Run(t *testing.T, fresh func(t *testing.T) Place) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Place)
	}{
		{"NewKeyIsNewUntilRecorded", testClaim},
		{"ConsumersAreApart", testConsumers},
		{"OtherBodyIsAMismatch", testMismatch},
		{"IDsAreComparedByBytes", testIDs},
		{"RecordingAgainIsNoError", testRecordAgain},
		{"RecordsSurviveReopening", testReopen},
		{"ConcurrentClaimsAndRecords", testConcurrent},
		{"OneKeyFromManyCallersInOneBatch", testSameKey},
		{"ClaimsTogetherAreAnsweredOneByOne", testClaimAll},
		{"EndOfTheWaitIsNoAnswer", testContext},
		{"RetentionKeepsWhatIsYounger", testRetention},
		{"ReplicasLeaseKeys", testLeases},
		{"ManyOpenAtOnce", testOpenAtOnce},

		{"ParkedMessageComesBackWhole", testParkWhole},
		{"LargeBodyComesBackWhole", testLargeBody},
		{"RedeliveredMessageIsNotKeptTwice", testParkMerge},
		{"MessagesWithoutIDAreNeverMerged", testParkWithoutID},
		{"ParkingAgainReplaces", testParkReplace},
		{"ParkedMessagesTurnOutToBeOne", testParkTurnsOutTheSame},
		{"DueMessagesAreTakenOnce", testTakeDue},
		{"TakenByMany", testTakeConcurrently},
		{"TakenMessagesComeBackAfterTheEnd", testTakenComesBack},
		{"PutBackAndRemove", testPutBack},
		{"ReplayMakesDueNow", testReplay},
		{"DiscardDeletes", testDiscard},
		{"ListPagesAndFilters", testList},
		{"CountsByKind", testCount},

		{"LookupForgetMark", testRecordsByHand},
		{"AuditIsNewestFirst", testAudit},
		{"PausesSurviveReopening", testPauses},
		{"HealthyAndExamined", testHealthy},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, fresh(t))
		})
	}
}

func key(id string) inbox.Key { return inbox.Key{Consumer: Consumer, ID: inbox.MessageID(id)} }

func fingerprint(b byte) inbox.Fingerprint { return inbox.Fingerprint{b, 1, 2, 3, 4, 5, 6, b} }

func claim(t testing.TB, s store.Store, k inbox.Key, fp inbox.Fingerprint) inbox.Claim {
	t.Helper()
	c, err := s.Claim(t.Context(), k, fp)
	if err != nil {
		t.Fatalf("Claim(%v): %v", k, err)
	}
	if c.Key != k || c.Fingerprint != fp {
		t.Fatalf("Claim(%v, %v): answer is of %v, %v", k, fp, c.Key, c.Fingerprint)
	}
	return c
}

func wantStatus(t testing.TB, s store.Store, k inbox.Key, fp inbox.Fingerprint, want inbox.ClaimStatus) inbox.Claim {
	t.Helper()
	c := claim(t, s, k, fp)
	if c.Status != want {
		t.Errorf("Claim(%q): got %s, want %s", k.ID, status(c.Status), status(want))
	}
	return c
}

func status(s inbox.ClaimStatus) string {
	return [...]string{"new", "recorded", "mismatch", "held"}[s]
}

func record(t testing.TB, s store.Store, c inbox.Claim) {
	t.Helper()
	must(t, s.Record(t.Context(), c))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantNotFound(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("%s: got %v, want %v", what, err, inbox.ErrNotFound)
	}
}

// patience is for slow machines only: what is waited for takes milliseconds.
const patience = time.Minute

// eventually waits for what the store does in its own time.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for !done() {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func near(got, want time.Time) error {
	if d := got.Sub(want); d < -time.Minute || d > time.Minute {
		return fmt.Errorf("got %v, want about %v", got, want)
	}
	return nil
}
