package admission

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
)

// maxQuantityBytes keeps the arithmetic small; a real quantity has 20 bytes.
const maxQuantityBytes = 64

var quantityForm = regexp.MustCompile(`^\+?([0-9]+\.?[0-9]*|\.[0-9]+)(?:([numkMGTPE]?|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))$`)

// decimals and binaries give the exponents, of 10 and of 2, of the suffixes.
var (
	decimals = map[string]int{"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
	binaries = map[string]int{"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
)

// Units reads a Kubernetes quantity such as "16Gi" or "8" in whole units
// (bytes, cores, devices), rounded up and capped at the largest int64. The
// empty quantity is 0. Text that is not a quantity is an error, and so is a
// negative quantity.
func Units(quantity string) (int64, error) { return scaled(quantity, 1) }

// MilliUnits is [Units] in thousandths: 8000 for "8" and 500 for "500m".
func MilliUnits(quantity string) (int64, error) { return scaled(quantity, 1000) }

func scaled(quantity string, by int64) (int64, error) {
	if quantity == "" {
		return 0, nil
	}
	value, err := parseQuantity(quantity)
	if err != nil {
		return 0, err
	}
	return ceil(value.Mul(value, big.NewRat(by, 1))), nil
}

func parseQuantity(s string) (*big.Rat, error) {
	m := quantityForm.FindStringSubmatch(s)
	if m == nil || len(s) > maxQuantityBytes {
		return nil, fmt.Errorf("%q is not a quantity", cut(s, maxQuantityBytes))
	}
	number, suffix, exponent := m[1], m[2], m[3]
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return nil, fmt.Errorf("%q is not a quantity", s)
	}
	if bits, ok := binaries[suffix]; ok {
		return value.Mul(value, power(2, bits)), nil
	}
	ten, err := decimals[suffix], error(nil)
	if exponent != "" {
		ten, err = strconv.Atoi(exponent)
	}
	return value.Mul(value, power(10, ten)), err
}

// power returns base to the n, which may be negative.
func power(base int64, n int) *big.Rat {
	abs := max(n, -n)
	p := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(abs)), nil))
	if n < 0 {
		return p.Inv(p)
	}
	return p
}

func ceil(r *big.Rat) int64 {
	q, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	if !q.IsInt64() {
		return math.MaxInt64
	}
	return q.Int64()
}
