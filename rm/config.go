package rm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"jobmesh/cgo/api"
)

// Config is a parameter: a line "module.name value" in redis.conf, CONFIG SET,
// or a pair of loadmodule's arguments.
type Config struct {
	Name      string
	kind      api.ConfigKind
	defText   string
	defNum    int64
	lo, hi    int64
	immutable bool
	secret    bool
	getText   func() string
	setText   func(string) error
	getNum    func() int64
	setNum    func(int64) error
}

// BoolConfig is a parameter that is yes or no.
func BoolConfig(name string, def bool, get func() bool, set func(bool) error) *Config {
	num := func(b bool) int64 {
		if b {
			return 1
		}
		return 0
	}
	return &Config{Name: name, kind: api.ConfigBool, defNum: num(def), hi: 1,
		getNum: func() int64 { return num(get()) },
		setNum: func(v int64) error { return set(v != 0) }}
}

// IntConfig is a whole number from lo to hi. Immutable ones can only be set when
// the server starts.
func IntConfig(name string, def, lo, hi int64, immutable bool, get func() int64, set func(int64) error) *Config {
	return &Config{Name: name, kind: api.ConfigNumeric, defNum: def, lo: lo, hi: hi, immutable: immutable, getNum: get, setNum: set}
}

// TextConfig is a text. Immutable ones can only be set when the server starts.
func TextConfig(name, def string, immutable bool, get func() string, set func(string) error) *Config {
	return &Config{Name: name, kind: api.ConfigString, defText: def, immutable: immutable, getText: get, setText: set}
}

// SecretConfig is TextConfig for a secret: CONFIG GET answers it only to its exact name. To
// that name it must answer, since CONFIG REWRITE asks in the same way, and writes the
// answer to redis.conf.
func SecretConfig(name string, immutable bool, get func() string, set func(string) error) *Config {
	c := TextConfig(name, "", immutable, get, set)
	c.secret = true
	return c
}

func (c *Config) register(ctx api.Context, slot int) error {
	return api.RegisterConfig(ctx, slot, c.kind, c.Name, c.defText, c.defNum, c.lo, c.hi, c.immutable, c.secret)
}

func (c *Config) num() int64 { return c.getNum() }

// text gives the server a string, which the server frees.
func (c *Config) text() api.String { return api.NewString([]byte(c.getText())) }

func (c *Config) set(text string, num int64) error {
	if c.kind == api.ConfigString {
		return c.setText(text)
	}
	return c.setNum(num)
}

func (c *Config) parse(v string) error {
	switch c.kind {
	case api.ConfigBool:
		switch strings.ToLower(v) {
		case "yes":
			return c.setNum(1)
		case "no":
			return c.setNum(0)
		}
		return errors.New("must be yes or no")
	case api.ConfigNumeric:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < c.lo || n > c.hi {
			return fmt.Errorf("must be a number from %d to %d", c.lo, c.hi)
		}
		return c.setNum(n)
	}
	return c.setText(v)
}

// InfoWriter fills the module's part of INFO. The server puts the module's
// name before the names of sections and fields.
type InfoWriter struct{ p unsafe.Pointer }

// Section starts a section.
func (w *InfoWriter) Section(name string) { api.InfoSection(w.p, name) }

// Int adds a number.
func (w *InfoWriter) Int(name string, v int64) { api.InfoInt(w.p, name, v) }

// Text adds a text.
func (w *InfoWriter) Text(name, v string) { api.InfoText(w.p, name, v) }
