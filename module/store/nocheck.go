//go:build !check

package store

func (*Store) mustKnow(*Queue) {}
