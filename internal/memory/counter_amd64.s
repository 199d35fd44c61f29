#include "textflag.h"

// func counter() uint64
TEXT ·counter(SB), NOSPLIT, $0-8
	RDTSC
	SHLQ $32, DX
	ORQ  DX, AX
	MOVQ AX, ret+0(FP)
	RET

// func fetch(written, read unsafe.Pointer) uint64
TEXT ·fetch(SB), NOSPLIT, $0-24
	MOVQ written+0(FP), CX
	MOVQ read+8(FP), BX
	PREFETCHT0 (BX)
	BYTE $0x0F; BYTE $0x0D; BYTE $0x09 // PREFETCHW (CX)
	BYTE $0x0F; BYTE $0x0D; BYTE $0x49; BYTE $0x40 // PREFETCHW 64(CX)
	RDTSC
	SHLQ $32, DX
	ORQ  DX, AX
	MOVQ AX, ret+16(FP)
	RET
