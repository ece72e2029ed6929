//go:build e2e && !e2e_recovery

package e2e

// everyRecovery: see recovery_all_test.go.
const everyRecovery = false
