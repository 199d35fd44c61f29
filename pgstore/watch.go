package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// defaultPoll is how old this program's knowledge of the limits may be.
const defaultPoll = time.Second

// watch follows changes of the limits made elsewhere: it listens on a
// connection of its own, and asks for the revision besides, for proxies that
// swallow notifications. Only a store over a pool can: a connection or a
// transaction belongs to its caller.
func (c *catalog) watch(config Config) {
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	pool, ok := c.db.(*pgxpool.Pool)
	if !ok || config.Poll < 0 && c.isRead.Load() {
		return
	}
	w := &watcher{cat: c, poll: config.Poll, once: config.Poll < 0, report: c.report, config: pool.Config().ConnConfig.Copy()}
	if w.poll <= 0 {
		w.poll = defaultPoll
	}
	c.done.Go(func() { w.run(ctx) })
}

func (c *catalog) close() {
	c.stop()
	c.done.Wait()
}

type watcher struct {
	cat    *catalog
	config *pgx.ConnConfig
	poll   time.Duration
	once   bool // only until the limits have been read
	report func(error)
	conn   *pgx.Conn // listens; nil while there is none
}

func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil && (!w.once || !w.cat.isRead.Load()) {
		w.listen(ctx)
		w.wait(ctx)
		if ctx.Err() == nil {
			w.refresh(ctx)
		}
	}
	w.hangUp()
}

func (w *watcher) listen(ctx context.Context) {
	if w.conn != nil || w.once || !w.cat.engine().hasFunctions() { // who changes a limit there cannot notify
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*w.poll)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, w.config)
	if err == nil {
		w.conn = conn
		_, err = conn.Exec(ctx, "listen dipwell")
	}
	if err != nil {
		w.fail(ctx, err)
	}
}

// wait returns when there may be something new: told so, or after poll.
func (w *watcher) wait(ctx context.Context) {
	bound, cancel := context.WithTimeout(ctx, w.poll)
	defer cancel()
	if w.conn == nil {
		<-bound.Done()
		return
	}
	if _, err := w.conn.WaitForNotification(bound); err != nil && bound.Err() == nil {
		w.fail(ctx, err)
		<-bound.Done()
	}
}

// refresh reads the limits again when they have moved.
func (w *watcher) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*w.poll)
	defer cancel()
	if err := w.cat.refresh(ctx); err != nil {
		w.fail(ctx, err)
	}
}

// fail tells of an error, and gives up a connection that may be its cause.
func (w *watcher) fail(ctx context.Context, err error) {
	if ctx.Err() == nil || ctx.Err() == context.DeadlineExceeded {
		w.report(err)
	}
	w.hangUp()
}

func (w *watcher) hangUp() {
	if w.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.conn.Close(ctx) // it is given up either way
	w.conn = nil
}
