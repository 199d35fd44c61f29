// This file lets percpu.go declare functions without a body.
