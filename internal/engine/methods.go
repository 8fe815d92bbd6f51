package engine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Methods is the set of gRPC methods that a model runtime serves (methodInfos and allowAnyMethod of
// ModelMesh's interface). It is one comparable text with a sorted line per method: the method and
// the field numbers that lead to the model's id in its messages, such as
// "inference.GRPCInferenceService/ModelInfer 1". Without numbers the id is only in the headers. A
// last line "*" allows all other methods. The empty Methods allows every method, with the id in the
// headers.
type Methods string

// anyMethod is the line that allows all other methods.
const anyMethod = "*"

// maxPath limits the length of a path, as package kserve does.
const maxPath = 16

// maxMethods limits the number of methods.
const maxMethods = 1024

// MethodsOf builds Methods from a runtime's paths, and from whether it allows other methods.
func MethodsOf(paths map[string][]uint32, others bool) (Methods, error) {
	if len(paths) == 0 {
		return "", nil
	}
	if len(paths) > maxMethods {
		return "", fmt.Errorf("%d methods are more than %d", len(paths), maxMethods)
	}
	lines := make([]string, 0, len(paths)+1)
	for _, method := range slices.Sorted(maps.Keys(paths)) {
		if method == "" || strings.ContainsAny(method, " \n*") {
			return "", fmt.Errorf("%q is no method: want package.Service/Method", method)
		}
		if len(paths[method]) > maxPath {
			return "", fmt.Errorf("the path of %s has %d numbers, and at most %d can be followed", method, len(paths[method]), maxPath)
		}
		numbers := make([]string, len(paths[method]))
		for i, number := range paths[method] {
			numbers[i] = strconv.FormatUint(uint64(number), 10)
		}
		lines = append(lines, strings.TrimSuffix(method+" "+strings.Join(numbers, "."), " "))
	}
	if others {
		lines = append(lines, anyMethod)
	}
	return Methods(strings.Join(lines, "\n")), nil
}

// Lines returns its lines.
func (m Methods) Lines() []string {
	if m == "" {
		return nil
	}
	return strings.Split(string(m), "\n")
}

// MethodsOfLines is the inverse of [Methods.Lines].
func MethodsOfLines(lines []string) Methods { return Methods(strings.Join(lines, "\n")) }

// Takes reports whether the runtime serves a method, and returns the path of the model's id in the
// method's messages, nil if they do not contain the id.
func (m Methods) Takes(method string) (path []uint32, ok bool) {
	if m == "" {
		return nil, true
	}
	for line := range strings.SplitSeq(string(m), "\n") {
		if line == anyMethod {
			return nil, true
		}
		name, numbers, _ := strings.Cut(line, " ")
		if name != method {
			continue
		}
		path, err := readPath(numbers)
		return path, err == nil
	}
	return nil, false
}

func readPath(text string) (path []uint32, err error) {
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ".") {
		n, failed := strconv.ParseUint(part, 10, 29)
		if err = cmp.Or(err, failed); n == 0 {
			err = cmp.Or(err, errors.New("a field has a number"))
		}
		path = append(path, uint32(n))
	}
	if len(path) > maxPath {
		return nil, errors.New("a path is too long")
	}
	return path, err
}
