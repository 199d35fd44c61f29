package coalesce

// queue is a linked list of waiters in order of arrival.
type queue struct {
	head, tail *waiter
	len        int
}

func (q *queue) push(w *waiter) {
	if w.prev = q.tail; q.tail != nil {
		q.tail.next = w
	} else {
		q.head = w
	}
	q.tail = w
	q.len++
}

func (q *queue) unlink(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.tail = w.prev
	}
	w.prev, w.next = nil, nil
	q.len--
}
