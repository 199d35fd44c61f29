package httpclient

// Remembered returns the number of entries.
func (t *Transport) Remembered() int {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	return t.table.entries.Len()
}
