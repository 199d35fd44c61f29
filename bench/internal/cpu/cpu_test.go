package cpu

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// Server counts a child while it runs and after it was waited for.
func TestServer(t *testing.T) {
	child := exec.Command("sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo; read end || true")
	in, out := must(child.StdinPipe())(t), must(child.StdoutPipe())(t)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	alone := must(Process(child.Process.Pid))(t)
	running := must(Server(os.Getpid()))(t)
	in.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	ended := must(Server(os.Getpid()))(t)
	if alone < tick || running < alone || ended < running-2*tick {
		t.Errorf("the child used %v; with it %v, after it %v", alone, running, ended)
	}
	if all, family := must(Machine())(t), must(Family())(t); all < family || family < ended {
		t.Errorf("the machine used %v, this process and its children %v, before %v", all, family, ended)
	}
	if own := Own(); own <= 0 || own > time.Hour {
		t.Errorf("own time: %v", own)
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
