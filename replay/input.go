package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
)

// Input is where a log comes from.
type Input struct {
	Name  string // for the report
	Open  func() (io.ReadCloser, error)
	Size  int64 // bytes, when known
	Again bool  // Open gives the same log each time
}

// File is the log in a file, up to the size it has now; "-" is standard input.
// What is compressed with gzip is read as what it holds.
func File(path string, stdin io.Reader) (Input, error) {
	if path == "-" {
		return Stream("standard input", stdin), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return Input{}, err
	}
	st, err := f.Stat()
	if err == nil && st.IsDir() {
		err = fmt.Errorf("%s is a directory", path)
	}
	if err != nil {
		return Input{}, errors.Join(err, f.Close())
	}
	if !st.Mode().IsRegular() {
		in := Stream(path, nil)
		in.Open = func() (io.ReadCloser, error) { return f, nil }
		return in, nil
	}
	if err := f.Close(); err != nil {
		return Input{}, err
	}
	open := func() (io.ReadCloser, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		// A log that grows meanwhile must be the same when it is read again.
		return limited{io.LimitReader(f, st.Size()), f}, nil
	}
	return Input{Name: path, Open: open, Size: st.Size(), Again: true}, nil
}

type limited struct {
	io.Reader
	io.Closer
}

// Stream is a log that can be read once.
func Stream(name string, r io.Reader) Input {
	return Input{Name: name, Open: func() (io.ReadCloser, error) { return io.NopCloser(r), nil }}
}

// lineReader cuts a log into lines. Memory: its buffer, and up to maxLine
// bytes while a line is longer than that.
type lineReader struct {
	file  io.Closer
	raw   *counter
	buf   *bufio.Reader
	long  []byte
	ended bool
}

const lineBuffer = 256 << 10

func openLines(in Input) (*lineReader, error) {
	f, err := in.Open()
	if err != nil {
		return nil, err
	}
	l := &lineReader{file: f, raw: &counter{Reader: f}}
	l.buf = bufio.NewReaderSize(l.raw, lineBuffer)
	if magic, _ := l.buf.Peek(2); string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(l.buf)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", in.Name, err), f.Close())
		}
		l.buf = bufio.NewReaderSize(z, lineBuffer)
	}
	return l, nil
}

// next returns the next line without its end, cut after maxLine bytes, valid
// until the call after; io.EOF when there is none.
func (l *lineReader) next() ([]byte, error) {
	if l.ended {
		return nil, io.EOF
	}
	line, err := l.buf.ReadSlice('\n')
	if err != nil && errors.Is(err, bufio.ErrBufferFull) {
		line, err = l.readLong(line)
	}
	if err != nil && errors.Is(err, io.EOF) {
		if l.ended = true; len(line) == 0 {
			return nil, io.EOF
		}
		err = nil
	}
	if n := len(line); n > 0 && line[n-1] == '\n' {
		line = line[:n-1]
	}
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, err
}

func (l *lineReader) readLong(part []byte) (_ []byte, err error) {
	l.long = append(l.long[:0], part...)
	for err = bufio.ErrBufferFull; errors.Is(err, bufio.ErrBufferFull); {
		part, err = l.buf.ReadSlice('\n')
		l.long = append(l.long, part[:min(len(part), maxLine-len(l.long))]...)
	}
	line := l.long
	if cap(l.long) > 1<<20 { // one monster must not be paid for until the end
		l.long = nil
	}
	return line, err
}

// head is the beginning of what is left, at most n bytes, without reading it.
func (l *lineReader) head(n int) []byte {
	b, _ := l.buf.Peek(n)
	return b
}

// skipMark drops a byte order mark.
func (l *lineReader) skipMark() {
	if bytes.Equal(l.head(3), []byte("\xef\xbb\xbf")) {
		_, _ = l.buf.Discard(3)
	}
}

func (l *lineReader) close() { _ = l.file.Close() }

type counter struct {
	io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}
