package consumer

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestEveryMessageIsHandledAndAckedOnce(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]amqp.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRig(t, rigOptions{args: args})
			const n = 5000
			r.publish(0, n)
			eventually(t, 30*time.Second, "every message was handled", func() bool { d, _ := r.calls(); return d == n })
			if _, err := r.end(); err != nil {
				t.Errorf("Run = %v, want nil", err)
			}
			if _, total := r.calls(); total != n {
				t.Errorf("handler calls = %d, want %d", total, n)
			}
			if left := r.left(); left != 0 {
				t.Errorf("left in the queue = %d, want 0", left)
			}
		})
	}
}
