package simulate

import "context"

// A gate lets the tasks of a process wait for another one.
type gate struct {
	p     *process
	open  bool
	tasks []*task
}

// Wait implements lease.Gate. No caller leaves.
func (g *gate) Wait(context.Context) error {
	for !g.open {
		g.tasks = append(g.tasks, g.p.w.task)
		g.p.w.task.wait()
	}
	return nil
}

// Open implements lease.Gate. Those that wait go on once the caller waits or has ended.
func (g *gate) Open() {
	g.open = true
	for _, t := range g.tasks {
		g.p.w.after(0, func() {
			g.p.deliver(func() {
				if _, lives := g.p.tasks[t]; lives {
					t.resume()
				}
			})
		})
	}
}
