package store

// CarryUnits is carryUnits for tests.
func (d *Definition) CarryUnits(units int64, n uint32, o *Override, t int64) int64 {
	return d.carryUnits(units, n, o, t)
}
