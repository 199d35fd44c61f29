package gen

import (
	"os"
	"path/filepath"
)

// Run writes all files generated from step.go, below the root of the
// repository.
func Run(root string) error {
	p, err := Load(filepath.Join(root, "store"), "step.go")
	if err != nil {
		return err
	}
	text, err := Copy(filepath.Join(root, "store"), "algebra", "step.go", "num.go")
	if err == nil {
		err = write(filepath.Join(root, "internal/algebra/algebra.go"), text)
	}
	if err != nil {
		return err
	}
	if text, err = p.Go(); err == nil {
		err = write(filepath.Join(root, "internal/sqlexpr/step.go"), text)
	}
	if err != nil {
		return err
	}
	if err = render(filepath.Join(root, "pgstore"), p.funcs(plpgsql)); err != nil {
		return err
	}
	return render(filepath.Join(root, "redisstore"), p.funcs(lua))
}

// write leaves an unchanged file alone, so that its dependents are not rebuilt.
func write(name string, text []byte) error {
	if old, err := os.ReadFile(name); err == nil && string(old) == string(text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}
