// Command tally reads what "go test -json" prints, several runs in a row if
// need be, shows each package's end and all that failed, and ends with one line
// that adds everything up: "N passed, N failed". It exits 1 where something
// failed, or nothing ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

// count reads events and writes what a person wants to see of them.
func count(in io.Reader, out io.Writer) (passed, failed, skipped int) {
	output := map[string][]string{}
	// A failure above a failed subtest is the subtest's.
	parents := map[string]bool{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(out, lines.Text())
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			output[key] = append(output[key], e.Output)
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "build-fail":
			failed++
		case "pass", "fail", "skip":
			if e.Test == "" {
				fmt.Fprintf(out, "%-5s %s (%.1f s)\n", e.Action, e.Package, e.Elapsed)
				// A package can fail with none of its tests: a panic, a time-out.
				if e.Action == "fail" && !parents[e.Package] {
					failed++
					fmt.Fprint(out, strings.Join(output[key], ""))
				}
				continue
			}
			switch {
			case e.Action == "pass":
				passed++
			case e.Action == "skip":
				skipped++
				fmt.Fprint(out, strings.Join(output[key], ""))
			case parents[key]:
			default:
				failed++
				fmt.Fprint(out, strings.Join(output[key], ""))
			}
			if e.Action == "fail" {
				parents[e.Package] = true
				if i := strings.LastIndexByte(e.Test, '/'); i > 0 {
					parents[e.Package+" "+e.Test[:i]] = true
				}
			}
			delete(output, key)
		}
	}
	return passed, failed, skipped
}

func main() {
	passed, failed, skipped := count(os.Stdin, os.Stdout)
	line := fmt.Sprintf("%d passed, %d failed", passed, failed)
	if skipped > 0 {
		line += fmt.Sprintf(", %d skipped", skipped)
	}
	fmt.Println(line)
	if failed > 0 || passed == 0 {
		os.Exit(1)
	}
}
