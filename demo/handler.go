package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// handler is the running example handler.
type handler struct {
	process *process
	base    string // URL
}

// handlerStats is what the example handler tells of itself.
type handlerStats struct {
	Requests int `json:"requests"`
	Effects  int `json:"effects"`
}

func startHandler(ctx context.Context, dir, program string) (*handler, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	h := &handler{base: "http://" + addr}
	h.process, err = startProcess(dir, "handler", program, "-listen", addr, "-db", filepath.Join(dir, "orders.db"))
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(10 * time.Second); ; sleep(ctx, 20*time.Millisecond) {
		_, err := h.stats(ctx)
		switch {
		case err == nil:
			return h, nil
		case ctx.Err() != nil, !h.process.running(), time.Now().After(deadline):
			h.process.kill()
			return nil, errors.Join(ctx.Err(), fmt.Errorf("the handler does not answer: %w\n%s", err, lastWords(h.process.log)))
		}
	}
}

// url is where messages are posted to.
func (h *handler) url() string { return h.base + "/messages" }

func (h *handler) stats(ctx context.Context) (s handlerStats, err error) {
	body, err := get(ctx, h.base+"/stats")
	if err != nil {
		return s, fmt.Errorf("asking the handler: %w", err)
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&s); err != nil {
		return s, fmt.Errorf("reading the handler's figures: %w", err)
	}
	return s, nil
}

func (h *handler) stop() error {
	if err := h.process.stop(); err != nil {
		return fmt.Errorf("stopping the handler: %w\n%s", err, lastWords(h.process.log))
	}
	return nil
}
