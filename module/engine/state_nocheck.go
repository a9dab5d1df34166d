//go:build !check

package engine

// checked has a transition that no rule allows end the process. Only tests are built so (the tag check).
const checked = false
