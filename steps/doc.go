// Package steps is the upgrade: what is done to a node, in which order, and how
// each part is found to be needed or done.
//
// Plan returns the ordered steps as data; the Runner works through them. A
// step is a struct of functions over an Env, the node as the step sees it:
//
//   - Check only reads. It says Done, Needed or Blocked from what runs on the
//     node, not only from what lies on its disk.
//   - Run changes the node and can be repeated at any time: after a crash,
//     after a failure, after success.
//
// There is no separate verification: after Run the Runner asks Check until it
// says Done or the step's time is up, so that "needed" and "succeeded" have one
// definition.
//
// Errors say what was attempted. Those that a caller decides on have types:
// *BlockedError (nothing was changed), *RolledBackError (it is as before),
// *RollbackError (some of it is not). A hint, found with errors.As in a
// *HintError, is a command to type or a file to read.
package steps
