//go:build !race

package tables

// every point is tried; see every_race_test.go.
const every = 1
