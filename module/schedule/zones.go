package schedule

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// The zones of all nodes must be the same, so they are built in. [time.LoadLocation] would take the machine's zones where there are some,
// also with time/tzdata, so the file is read here. It is lib/time/zoneinfo.zip of a release of Go.

// Zones is the release of the time zone database that is built in. Replace it together with the file.
const Zones = "2025c"

//go:embed zoneinfo.zip
var zoneinfo []byte

// zones reads each zone when it is first asked for.
var zones = sync.OnceValue(func() map[string]func() (*time.Location, error) {
	all := map[string]func() (*time.Location, error){}
	r, err := zip.NewReader(bytes.NewReader(zoneinfo), int64(len(zoneinfo)))
	if err != nil {
		return all // a test opens it
	}
	for _, f := range r.File {
		if !f.FileInfo().IsDir() {
			all[f.Name] = sync.OnceValues(func() (*time.Location, error) { return readZone(f) })
		}
	}
	return all
})

func readZone(f *zip.File) (*time.Location, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return time.LoadLocationFromTZData(f.Name, data)
}

// zoneNamed finds a time zone; empty: UTC.
func zoneNamed(name string) (*time.Location, error) {
	if name == "" || name == "UTC" {
		return time.UTC, nil
	}
	read := zones()[name]
	if read == nil {
		return nil, fmt.Errorf("there is no time zone %.64q: take a name such as Europe/Berlin, of release %s of the time zone database", name, Zones)
	}
	return read()
}

// ZoneNames are the names of all zones, in their order.
func ZoneNames() []string {
	return slices.Sorted(maps.Keys(zones()))
}
