package storetest

var (
	verbCases, groupCases, reservationCases, windowCases, keyCases, historyCases []testCase
)
