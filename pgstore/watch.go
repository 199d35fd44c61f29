package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// defaultPoll is how old this program's knowledge of the limits may become.
const defaultPoll = time.Second

// watch follows changes of the limits made elsewhere. Only a store over a pool
// can: a connection or a transaction belongs to its caller.
func (s *Store) watch(c Config) {
	pool, ok := s.db.(*pgxpool.Pool)
	if !ok {
		return
	}
	timeout := 10 * defaultPoll
	if c.Poll > 0 {
		timeout = 10 * c.Poll
	}
	s.cat.Watch(&watcher{s: s, config: pool.Config(), report: c.OnError}, c.Poll, defaultPoll, timeout)
}

// watcher listens on a connection of its own. Notifications may also be lost in a proxy.
type watcher struct {
	s      *Store
	config *pgxpool.Config
	report func(error)
	conn   *pgx.Conn // the connection that listens; nil while there is none
}

func (w *watcher) listen(ctx context.Context, timeout time.Duration) {
	if w.conn != nil || !w.s.engine().hasFunctions() { // in such a database, whoever changes a limit cannot notify
		return
	}
	bound, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := w.connect(bound)
	if err == nil {
		_, err = w.conn.Exec(bound, "listen dipwell")
	}
	if ctx.Err() == nil {
		w.Looked(err)
	}
}

// connect connects as the pool does.
func (w *watcher) connect(ctx context.Context) (err error) {
	config := w.config.ConnConfig.Copy()
	if before := w.config.BeforeConnect; before != nil {
		if err = before(ctx, config); err != nil {
			return err
		}
	}
	w.conn, err = pgx.ConnectConfig(ctx, config)
	return err
}

func (w *watcher) Wait(ctx context.Context, poll time.Duration) {
	w.listen(ctx, 10*poll)
	bound, cancel := context.WithTimeout(ctx, poll)
	defer cancel()
	if w.conn == nil {
		<-bound.Done()
		return
	}
	if _, err := w.conn.WaitForNotification(bound); err != nil && bound.Err() == nil {
		w.Looked(err)
		<-bound.Done()
	}
}

// Looked reports an error, and closes a connection that may be its cause.
func (w *watcher) Looked(err error) {
	if err != nil {
		w.report(err)
		w.Close()
	}
}

func (w *watcher) Close() {
	if w.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.conn.Close(ctx) // it is given up even if closing fails
	w.conn = nil
}
