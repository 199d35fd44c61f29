package memory

// A heapOf has the item that comes before all others on top.
type heapOf[T any] struct {
	items  []T
	before func(a, b T) bool
	at     func(item T) *int // returns where an item keeps its index
}

func (h *heapOf[T]) Len() int           { return len(h.items) }
func (h *heapOf[T]) Less(i, j int) bool { return h.before(h.items[i], h.items[j]) }
func (h *heapOf[T]) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	*h.at(h.items[i]), *h.at(h.items[j]) = i, j
}

func (h *heapOf[T]) Push(x any) {
	*h.at(x.(T)) = len(h.items)
	h.items = append(h.items, x.(T))
}

func (h *heapOf[T]) Pop() any {
	n := len(h.items) - 1
	last := h.items[n]
	clear(h.items[n:])
	h.items = h.items[:n]
	return last
}
