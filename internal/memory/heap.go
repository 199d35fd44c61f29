package memory

// A heapOf has on top the item that is before all others.
type heapOf[T any] struct {
	items  []T
	before func(a, b T) bool
	at     func(item T) *int // where an item keeps its index; nil: items keep none
}

func (h *heapOf[T]) Len() int           { return len(h.items) }
func (h *heapOf[T]) Less(i, j int) bool { return h.before(h.items[i], h.items[j]) }
func (h *heapOf[T]) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.keep(i)
	h.keep(j)
}

func (h *heapOf[T]) Push(x any) {
	h.items = append(h.items, x.(T))
	h.keep(len(h.items) - 1)
}

func (h *heapOf[T]) Pop() any {
	n := len(h.items) - 1
	last := h.items[n]
	clear(h.items[n:])
	h.items = h.items[:n]
	return last
}

func (h *heapOf[T]) keep(i int) {
	if h.at != nil {
		*h.at(h.items[i]) = i
	}
}
