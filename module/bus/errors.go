package bus

import (
	"errors"
	"fmt"
)

// Reasons why a connection isn't made, or ends; see [Down] and [Met]. Match them with
// errors.Is; the error's text says more.
var (
	ErrNotBus   = errors.New("not the bus of a jobmesh node")
	ErrSelf     = errors.New("the address is this node's own")
	ErrSecret   = errors.New("the cluster secrets differ")
	ErrVersion  = errors.New("no common protocol version")
	ErrIDInUse  = errors.New("another node has the same ID")
	ErrWrongID  = errors.New("another node answers at the address")
	ErrLoopback = errors.New("without a secret only loopback addresses are allowed")
	ErrProtocol = errors.New("the peer broke the protocol")
	ErrRefused  = errors.New("the peer refused the connection")
	ErrSilent   = errors.New("nothing heard for too long")
	ErrReplaced = errors.New("replaced by a newer connection")
	ErrForgot   = errors.New("forgotten")
	ErrClosing  = errors.New("shutting down")
)

// Code is the reason in a close frame.
type Code uint16

// Codes are part of the protocol: see PROTOCOL.md.
const (
	CodeNone       Code = 0 // never sent: nobody is there to be told
	CodeShutdown   Code = 1
	CodeProtocol   Code = 2
	CodeVersion    Code = 3
	CodeSecret     Code = 4 // the proof was made with another secret
	CodeNeedSecret Code = 5 // the sender has a secret, the receiver none
	CodeNoSecret   Code = 6 // the sender has no secret, the receiver has one
	CodeDuplicate  Code = 7 // there is a connection already
	CodeReplaced   Code = 8
	CodeIDInUse    Code = 9
	CodeSelf       Code = 10
	CodeForgotten  Code = 11
	CodeWrongID    Code = 12
	CodeSilent     Code = 13
	CodeInternal   Code = 14
)

// closeError says why a connection ends. This node says so, or, if remote, the peer's close
// frame did.
type closeError struct {
	code   Code
	text   string
	remote bool
	cause  error // nil if the code says enough
}

func (e *closeError) Error() string {
	if e.remote {
		return fmt.Sprintf("closed by the peer: %s (code %d)", e.text, e.code)
	}
	return e.text
}

func (e *closeError) Unwrap() error {
	if e.cause != nil {
		return e.cause
	}
	switch e.code {
	case CodeShutdown:
		return ErrClosing
	case CodeProtocol:
		return ErrProtocol
	case CodeVersion:
		return ErrVersion
	case CodeSecret, CodeNeedSecret, CodeNoSecret:
		return ErrSecret
	case CodeReplaced:
		return ErrReplaced
	case CodeIDInUse:
		return ErrIDInUse
	case CodeSelf:
		return ErrSelf
	case CodeForgotten:
		return ErrForgot
	case CodeWrongID:
		return ErrWrongID
	case CodeSilent:
		return ErrSilent
	}
	return ErrRefused
}

// refuse makes a reason of this node's, which the peer is told.
func refuse(code Code, format string, args ...any) *closeError {
	return &closeError{code: code, text: fmt.Sprintf(format, args...)}
}

func protocolError(format string, args ...any) *closeError {
	return refuse(CodeProtocol, format, args...)
}

// broken wraps an error after which the peer can't be told anything.
func broken(cause error, format string, args ...any) *closeError {
	return &closeError{code: CodeNone, text: fmt.Sprintf(format, args...), cause: cause}
}

// asClose turns any error into one that a connection can be closed with.
func asClose(err error) *closeError {
	var e *closeError
	if errors.As(err, &e) {
		return e
	}
	return broken(err, "%s", err.Error())
}
