package memory

const (
	extentPhases  = extentBytes / 8
	phasesPerSlot = extentPhases / int(extentSlots)
)

// readyPhases makes room for the phases of the shard's rows. It returns false if
// there is none. Shards without spread windows have no memory for phases.
func (sh *shard) readyPhases() bool {
	for len(sh.phases)*phasesPerSlot < len(sh.ext) {
		p := sh.store.arena.extent()
		if p == nil {
			return false
		}
		sh.phases = append(sh.phases, (*[extentPhases]int64)(p))
	}
	sh.spread = true // now that every slot has room for one
	return true
}

// phase returns the phase of the key of the row at i (see Op.Phase), or 0 if it is
// not known yet. It depends on the limit's name and the key alone.
func (sh *shard) phase(i int) int64 {
	if !sh.spread {
		return 0
	}
	return sh.phases[uint(i)/extentPhases][uint(i)%extentPhases]
}

func (sh *shard) setPhase(i int, p int64) {
	if sh.spread {
		sh.phases[uint(i)/extentPhases][uint(i)%extentPhases] = p
	}
}

// keepPhase stores the phase of the row at i, if it is known.
func (sh *shard) keepPhase(i int, p int64) {
	if p != 0 && sh.phase(i) != p && (sh.spread || sh.readyPhases()) {
		sh.setPhase(i, p)
	}
}
