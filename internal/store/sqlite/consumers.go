package sqlite

import (
	"context"
	"database/sql"
	"sync"
)

// consumers maps a consumer's name to the number that its records carry.
type consumers struct {
	mu  sync.RWMutex
	ids map[string]int64
}

func (c *consumers) load(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, "select id, name from consumer")
	if err != nil {
		return err
	}
	defer rows.Close()
	c.ids = make(map[string]int64)
	for rows.Next() {
		var id int64
		var name string
		if err := rows.Scan(&id, &name); err != nil {
			return err
		}
		c.ids[name] = id
	}
	return rows.Err()
}

func (c *consumers) get(name string) (int64, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	id, ok := c.ids[name]
	return id, ok
}

// number returns the consumer's number and gives it one where it has none. It
// needs the writing connection and must not be called inside a transaction.
func (s *Store) number(name string) (int64, error) {
	if id, ok := s.consumers.get(name); ok {
		return id, nil
	}
	// The update changes nothing, but makes "returning" answer.
	var id int64
	err := s.write.QueryRowContext(context.Background(), `insert into consumer (name) values (?1)
		on conflict (name) do update set name = excluded.name returning id`, name).Scan(&id)
	if err != nil {
		return 0, s.wrote(err)
	}
	s.consumers.mu.Lock()
	defer s.consumers.mu.Unlock()
	s.consumers.ids[name] = id
	return id, nil
}
