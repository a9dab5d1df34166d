package rm

import "jobmesh/cgo/api"

// KeyUse says what is done to a key.
type KeyUse = api.KeyUse

// Uses of a key.
const (
	UseRead  = api.UseRead
	UseWrite = api.UseWrite
)

// May says whether the ACL lets the client's user use a key that is no argument of the
// command: the server checks only arguments. If there is no user, as with the AOF, the
// answer is yes.
func (c *Ctx) May(key []byte, use KeyUse) bool { return api.CallerMay(c.f.Context(), some(key), use) }

// MayAll says whether the client's user may use all keys, see [User.MayAll].
func (c *Ctx) MayAll() bool { return api.CallerMay(c.f.Context(), nil, 0) }

// User has [Ctx.May] for use after the call, and for many keys.
type User struct {
	name    string
	noLimit bool // there is no user, as with the AOF
}

// User returns the client's user.
func (c *Ctx) User() User {
	name := api.User(c.f.Context())
	if name == nil {
		return User{noLimit: true}
	}
	defer api.FreeString(name)
	return User{name: string(api.StringBytes(name))}
}

// May says whether the user may use a key now. A user that was removed meanwhile may not.
func (u User) May(key []byte, use KeyUse) bool { return u.noLimit || u.may(some(key), use) }

// MayAll says whether the user may use all keys. If the server doesn't tell (Redis before
// 7.0.6), the answer is no.
func (u User) MayAll() bool { return u.noLimit || u.may(nil, 0) }

func (u User) may(key []byte, use KeyUse) bool {
	name := api.NewString([]byte(u.name))
	defer api.FreeString(name)
	return api.UserMay(name, key, use)
}

// some returns the key, but never nil, also if it has no bytes.
func some(key []byte) []byte {
	if len(key) == 0 {
		return []byte{0}[:0]
	}
	return key
}
