package main

import (
	"context"
	"slices"
)

// A gate lets tasks of a process wait for another task.
type gate struct {
	p     *process
	open  bool
	tasks []*task
}

// Wait lets the task wait until the gate is open or the task's caller leaves.
func (g *gate) Wait(ctx context.Context) error {
	for !g.open {
		if err := ctx.Err(); err != nil {
			return err
		}
		t := g.p.w.task
		g.tasks = append(g.tasks, t)
		t.leaving = func() {
			g.tasks = slices.DeleteFunc(g.tasks, func(o *task) bool { return o == t })
			t.resume()
		}
		t.wait()
		t.leaving = nil
	}
	return nil
}

// Open opens the gate. The waiting tasks continue once the task that called Open waits
// or has ended.
func (g *gate) Open() {
	g.open = true
	for _, t := range g.tasks {
		g.p.whileLives(t, 0, t.resume)
	}
}
