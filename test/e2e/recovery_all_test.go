//go:build e2e && e2e_recovery

package e2e

// everyRecovery: all of the runbook is tried, and not only the quick entries.
const everyRecovery = true
