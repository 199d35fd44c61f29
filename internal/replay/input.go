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

// Input is a log to be replayed. Logs compressed with gzip are decompressed.
type Input struct {
	Name  string                        // name of the log for the report
	Open  func() (io.ReadCloser, error) // opens the log at its beginning
	Size  int64                         // in bytes, or 0 if not known
	Again bool                          // Open may be called again, and returns the same log
}

// File returns the log in a file, up to the size that the file has now. The path
// "-" is stdin. It returns an error if the file cannot be opened.
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
		return Stream(path, f), nil
	}
	if err := f.Close(); err != nil {
		return Input{}, err
	}
	open := func() (io.ReadCloser, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		// If the log grows, a second reading must return the same bytes as the first.
		return struct {
			io.Reader
			io.Closer
		}{io.LimitReader(f, st.Size()), f}, nil
	}
	return Input{Name: path, Open: open, Size: st.Size(), Again: true}, nil
}

// Stream returns the log that r reads, which can be read only once. A log in a file
// is faster as a File, since Run need not sort it if it is in order.
func Stream(name string, r io.Reader) Input {
	return Input{Name: name, Open: func() (io.ReadCloser, error) {
		out, in := io.Pipe() // closing in ends a Read that waits
		go func() {
			_, err := io.Copy(in, r)
			_ = in.CloseWithError(err) // a nil error means the end of the log
		}()
		return out, nil
	}}
}

// lineReader splits a log into lines. It needs its buffer and, for a longer line,
// up to maxLine bytes.
type lineReader struct {
	name  string
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
	l := &lineReader{name: in.Name, file: f, raw: &counter{Reader: f}}
	l.buf = bufio.NewReaderSize(l.raw, lineBuffer)
	if bytes.HasPrefix(l.head(2), []byte("\x1f\x8b")) {
		z, err := gzip.NewReader(l.buf)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", in.Name, err), f.Close())
		}
		l.buf = bufio.NewReaderSize(z, lineBuffer)
	}
	if why := unreadable(l.head(detectBytes)); why != "" {
		return nil, errors.Join(badOption("log", "%s %s", in.Name, why), f.Close())
	}
	if bytes.HasPrefix(l.head(3), []byte("\xef\xbb\xbf")) { // a byte order mark is skipped
		_, err = l.buf.Discard(3)
	}
	return l, err
}

// unreadable says, if the lines of a log cannot be read, what the log is and what to do about
// it.
func unreadable(head []byte) string {
	for magic, packed := range map[string]string{"BZh": "bzip2: unpack it first (bunzip2)", "\xfd7zXZ\x00": "xz: unpack it first (unxz)",
		"\x28\xb5\x2f\xfd": "Zstandard: unpack it first (unzstd)", "PK\x03\x04": "zip: unpack it first (unzip)"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return "is compressed with " + packed
		}
	}
	switch {
	case bytes.HasPrefix(head, []byte("\xff\xfe")), bytes.HasPrefix(head, []byte("\xfe\xff")), len(head) > 3 && (head[0]|head[2] == 0 || head[1]|head[3] == 0):
		return "is UTF-16: convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)"
	case bytes.IndexByte(head, '\n') < 0 && bytes.IndexByte(bytes.TrimRight(head, "\r"), '\r') >= 0:
		return `has lines that end in CR alone: end them in LF first (tr '\r' '\n')`
	}
	return ""
}

// next returns the next line without its line end, cut after maxLine bytes. It is
// valid until the next call. After the last line next returns io.EOF.
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
	line = bytes.TrimSuffix(line, []byte{'\n'})
	return bytes.TrimSuffix(line, []byte{'\r'}), err
}

func (l *lineReader) readLong(part []byte) (_ []byte, err error) {
	l.long = append(l.long[:0], part...)
	for err = bufio.ErrBufferFull; errors.Is(err, bufio.ErrBufferFull); {
		part, err = l.buf.ReadSlice('\n')
		l.long = append(l.long, part[:min(len(part), maxLine-len(l.long))]...)
	}
	line := l.long
	if cap(l.long) > 1<<20 { // do not keep the memory of one huge line
		l.long = nil
	}
	return line, err
}

// head returns up to n of the next bytes without reading them.
func (l *lineReader) head(n int) []byte {
	b, _ := l.buf.Peek(n)
	return b
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
