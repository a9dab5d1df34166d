// Command tally reads what "go test -json" prints, several runs in a row if
// need be, shows each package's end and all that failed. At the end it says again why each test failed, without the
// logs around it, so that the last lines of a long run tell; the very last line
// adds everything up: "N passed, N failed". It exits 1 where something
// failed, or nothing ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// count reads events and writes what a person wants to see of them. A test with subtests
// isn't counted beside them, unless it fails although they all passed.
func count(in io.Reader, out io.Writer) (passed, failed, skipped int) {
	output := map[string][]string{}
	running := map[string]bool{} // tests that have begun, and not ended
	// counted and broken have the keys of the tests and packages that hold a test which was
	// counted, or failed. A package's key is its path and a blank.
	counted, broken := map[string]bool{}, map[string]bool{}
	var reasons []string
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
		case "start": // a run of its own, of a package that may have had another
			delete(counted, key)
			delete(broken, key)
			delete(output, key)
		case "run":
			running[key] = true
			delete(counted, key)
			delete(broken, key)
		case "output":
			output[key] = append(output[key], e.Output)
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "pass", "fail", "skip":
			delete(running, key)
			if e.Test == "" {
				// A package without tests is not shown.
				if e.Action != "skip" {
					fmt.Fprintf(out, "%-5s %s (%.1f s)\n", e.Action, e.Package, e.Elapsed)
				}
				// A package can fail with none of its tests: it doesn't build,
				// panics, runs out of time.
				if e.Action == "fail" && !broken[key] {
					failed++
					fmt.Fprint(out, strings.Join(output[key], ""))
				}
				delete(output, key)
				showCutOff(out, key, running, output)
				continue
			}
			if e.Action != "pass" {
				fmt.Fprint(out, strings.Join(output[key], ""))
			}
			switch {
			case e.Action == "fail" && !broken[key]:
				failed++
				reasons = append(reasons, "failed: "+key+"\n"+reason(output[key]))
			case counted[key]:
			case e.Action == "skip":
				skipped++
			case e.Action == "pass":
				passed++
			}
			for above := key; above != e.Package+" "; {
				if i := strings.LastIndexByte(above, '/'); i > len(e.Package) {
					above = above[:i]
				} else {
					above = e.Package + " "
				}
				counted[above] = true
				if e.Action == "fail" {
					broken[above] = true
				}
			}
			delete(output, key)
		}
	}
	fmt.Fprint(out, strings.Join(reasons, ""))
	if err := lines.Err(); err != nil {
		fmt.Fprintln(out, "tally:", err)
		failed++
	}
	return passed, failed, skipped
}

const reasonLines = 12

// reason is the part of a failed test's output that says why it failed: from the first assertion or panic on, reasonLines at most. Where neither
// is found it is the first lines.
func reason(output []string) string {
	at := slices.IndexFunc(output, func(line string) bool {
		return strings.Contains(line, "Error Trace:") || strings.HasPrefix(line, "panic:")
	})
	output = output[max(at, 0):]
	return strings.Join(output[:min(len(output), reasonLines)], "")
}

// showCutOff shows the tests of a package that were running when the package ended: one of them has the reason, as that the time
// was up. It forgets them.
func showCutOff(out io.Writer, pkg string, running map[string]bool, output map[string][]string) {
	var names []string
	for key := range running {
		if strings.HasPrefix(key, pkg) {
			names = append(names, key)
		}
	}
	slices.Sort(names)
	for _, key := range names {
		fmt.Fprintf(out, "cut off: %s\n%s", key, strings.Join(output[key], ""))
		delete(running, key)
		delete(output, key)
	}
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
