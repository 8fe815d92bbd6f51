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

// Methods are the gRPC methods that a model runtime takes (methodInfos and allowAnyMethod of ModelMesh's interface). It is one text, so that
// it can be kept and compared: a line for each method, in order, with the numbers of the fields that lead to where the runtime wants the id of
// the model in its messages, such as "inference.GRPCInferenceService/ModelInfer 1", and none after a method that wants it in the headers
// alone. A last line of "*" lets every other method pass. No Methods let every method pass, and want the id in the headers.
type Methods string

// anyMethod is the line that lets every other method pass.
const anyMethod = "*"

// maxPath bounds the numbers of a path, as package kserve does.
const maxPath = 16

// maxMethods bounds how many a runtime has.
const maxMethods = 1024

// MethodsOf writes what a runtime said: where it wants the id in the messages of each method, and whether others may pass.
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

// Lines are its lines.
func (m Methods) Lines() []string {
	if m == "" {
		return nil
	}
	return strings.Split(string(m), "\n")
}

// MethodsOfLines is what [Methods.Lines] returned.
func MethodsOfLines(lines []string) Methods { return Methods(strings.Join(lines, "\n")) }

// Takes says whether a runtime takes a method, and where it wants the id in its messages; nil for nowhere.
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
