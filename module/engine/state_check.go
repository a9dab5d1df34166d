//go:build check

package engine

// checked has a transition that no rule allows end the process.
const checked = true
